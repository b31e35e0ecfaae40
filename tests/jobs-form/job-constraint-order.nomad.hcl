job "job-constraint-order" {
  constraint {
    attribute = "${meta.x}"
    version = "1"
    semver = "2"
  }
  constraint {
    attribute = "${meta.x}"
    semver = "2"
    regexp = "3"
  }
  constraint {
    attribute = "${meta.x}"
    set_contains = "q"
    distinct_property = "${meta.y}"
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
