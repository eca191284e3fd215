"""Check that the settings, Serve config and machines of a cluster agree, and compute their cost.

This is `podium doctor --cluster`. Three files define what is served, by how many replicas, and on which
machines. If they contradict each other, nothing reports that at run time, and a replica stays pending. The
checks only read files. They do not contact a cloud or start Ray.

    tables.py       tables printed with the findings
    files.py        the files, read into one `ClusterFiles`
    machines.py     node types, from `ray up`'s YAML or a RayService manifest
    deployments.py  resources of a replica, from the settings and the Serve config
    code.py         imports and user_config          scaling.py  replica counts and autoscaling
    hardware.py     ports, images, GPUs of machines
    placing.py      names, GPUs, nodes               memory.py   weights and KV cache against GPU memory
    running.py      keys, prices, draining, spot     cost.py     dollars per hour and per thousand requests
"""
