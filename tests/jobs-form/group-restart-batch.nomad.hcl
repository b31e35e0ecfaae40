job "group-restart-batch" {
  type = "batch"
  group "g" {
    restart {
      delay = "1s"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
