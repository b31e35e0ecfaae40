job "group-scaling-min" {
  group "g" {
    scaling {
      min = 2
      max = 4
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
