job "job-spread" {
  spread {
    attribute = "${node.datacenter}"
    weight = 70
    target "dc1" {
      percent = 60
    }
    target "dc2" {
      percent = 40
    }
  }
  spread {
    attribute = "${meta.rack}"
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
