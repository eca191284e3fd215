"""Check that settings, Serve config and machines of a cluster agree, and what they cost (`podium doctor
--cluster`).

Three files say what is served, by how many replicas, and on which machines. At run time nothing reports a
contradiction between them: a replica stays pending. The checks read files only; they contact no cloud and do
not start Ray.

    tables.py       tables printed with the findings
    files.py        the files, read into one `ClusterFiles`
    machines.py     node types, from `ray up`'s YAML or a RayService manifest
    deployments.py  resources of a replica, from the settings and the Serve config
    code.py         imports and user_config          scaling.py  replica counts and autoscaling
    hardware.py     ports, images, GPUs of machines
    placing.py      names, GPUs, nodes               memory.py   weights and KV cache against GPU memory
    running.py      keys, prices, draining, spot     cost.py     dollars per hour and per thousand requests
"""
