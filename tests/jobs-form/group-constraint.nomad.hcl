job "group-constraint" {
  group "g" {
    constraint {
      attribute = "${attr.kernel.name}"
      value = "linux"
    }
    affinity {
      attribute = "${meta.a}"
      value = "b"
      weight = 20
    }
    spread {
      attribute = "${node.datacenter}"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
