"""Several processes on one or more hosts: how they are started, agree, are watched and end."""
