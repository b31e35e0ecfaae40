job "job-affinities" {
  affinity {
    attribute = "${meta.a}"
    value = "b"
  }
  affinity {
    attribute = "${meta.a}"
    version = ">= 1"
    weight = -10
  }
  affinity {
    attribute = "${meta.a}"
    semver = "1.0.0"
    weight = 100
  }
  affinity {
    attribute = "${meta.a}"
    regexp = "x"
  }
  affinity {
    attribute = "${meta.a}"
    set_contains = "x"
  }
  affinity {
    attribute = "${meta.a}"
    set_contains_all = "x"
  }
  affinity {
    attribute = "${meta.a}"
    set_contains_any = "x"
  }
  affinity {
    attribute = "${meta.a}"
    operator = ">"
    value = "3"
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
