job "job-constraints" {
  constraint {
    attribute = "${attr.kernel.name}"
    value = "linux"
  }
  constraint {
    attribute = "${attr.cpu.arch}"
    operator = "!="
    value = "arm64"
  }
  constraint {
    attribute = "${attr.nomad.version}"
    version = ">= 1.0"
  }
  constraint {
    attribute = "${attr.nomad.version}"
    semver = ">= 1.0.0"
  }
  constraint {
    attribute = "${attr.kernel.name}"
    regexp = "^lin"
  }
  constraint {
    attribute = "${attr.kernel.name}"
    set_contains = "linux"
  }
  constraint {
    distinct_hosts = true
  }
  constraint {
    distinct_hosts = false
  }
  constraint {
    distinct_property = "${node.datacenter}"
  }
  constraint {
    distinct_property = "${meta.rack}"
    value = "2"
  }
  constraint {
    attribute = "${meta.x}"
    operator = "is_set"
  }
  constraint {
    attribute = "${meta.y}"
    operator = "is_not_set"
  }
  constraint {
    attribute = "${meta.z}"
    operator = "set_contains_any"
    value = "a,b"
  }
  constraint {
    attribute = "${meta.z}"
    operator = "set_contains_all"
    value = "a,b"
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
