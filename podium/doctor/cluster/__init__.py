"""Check whether settings, Serve config and machines of a cluster agree, and what they cost (`podium doctor --cluster`).

Three files say what is served, by how many replicas, and on which machines. At run time nothing reports a contradiction
between them: a replica just stays pending. The checks read files only; they ask no cloud and start no Ray.

    tables.py       what is shown beside the findings
    files.py        the files, read into one `ClusterFiles`
    machines.py     kinds of nodes, from `ray up`'s YAML or a RayService manifest
    deployments.py  what a replica needs, from the settings and the Serve config
    code.py         what is imported, user_config    scaling.py  replicas and what asks for them
    hardware.py     ports, images, GPUs of machines
    placing.py      names, GPUs, nodes               memory.py   weights and KV cache against GPU memory
    running.py      keys, prices, draining, spot     cost.py     dollars an hour, and for a thousand requests
"""
