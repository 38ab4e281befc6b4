# Makes mpirun notice a silent host after some 20 s (asked after 10 s, three times at intervals of 5 s). Its own values, 300 s, 9 times, 20 s, take
# 8 minutes, for which the workers wait in silence. What is set already stays. To be read by a shell before it starts horovodrun:
#
#   . scripts/keepalive.sh
export OMPI_MCA_oob_tcp_keepalive_time="${OMPI_MCA_oob_tcp_keepalive_time:-10}"
export OMPI_MCA_oob_tcp_keepalive_intvl="${OMPI_MCA_oob_tcp_keepalive_intvl:-5}"
export OMPI_MCA_oob_tcp_keepalive_probes="${OMPI_MCA_oob_tcp_keepalive_probes:-3}"
