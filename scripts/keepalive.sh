# Make mpirun notice a silent host after some 20 s: TCP keepalive probes after 10 s of silence, three at intervals of 5 s. mpirun's defaults (300 s,
# 9 probes, 20 s) take 8 minutes, during which the workers wait. Values that are already set are kept. Source this file before horovodrun:
#
#   . scripts/keepalive.sh
export OMPI_MCA_oob_tcp_keepalive_time="${OMPI_MCA_oob_tcp_keepalive_time:-10}"
export OMPI_MCA_oob_tcp_keepalive_intvl="${OMPI_MCA_oob_tcp_keepalive_intvl:-5}"
export OMPI_MCA_oob_tcp_keepalive_probes="${OMPI_MCA_oob_tcp_keepalive_probes:-3}"
