# Constraints that this machine meets.
# prints: placed

job "placed" {
  datacenters = ["*"]
  type        = "batch"

  constraint {
    attribute = "${attr.kernel.name}"
    value     = "linux"
  }

  constraint {
    attribute = "${attr.kernel.version}"
    operator  = "semver"
    value     = ">= 4.0.0-0"
  }

  affinity {
    attribute = "${node.datacenter}"
    value     = "dc1"
    weight    = 50
  }

  group "placed" {
    constraint {
      attribute = "${attr.cpu.numcores}"
      operator  = ">="
      value     = "1"
    }

    spread {
      attribute = "${node.datacenter}"
    }

    task "placed" {
      driver = "exec"

      config {
        command = "/bin/echo"
        args    = ["placed"]
      }
    }
  }
}
