job "job-constraint-idle" {
  constraint {
    attribute = "${meta.x}"
    value = "1"
    set_contains_any = "a"
    set_contains_all = "b"
    is_set = "c"
    is_not_set = "d"
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
