job "task-restart" {
  group "g" {
    restart {
      attempts = 3
      interval = "5m"
      delay = "10s"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      restart {
        attempts = 1
        mode = "fail"
      }
    }
  }
}
