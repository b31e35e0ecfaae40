job "group-scaling-max" {
  group "g" {
    scaling {
      max = 4
      type = "horizontal"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
