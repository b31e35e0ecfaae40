job "web" {
  group "api" {
    restart {
      attempts = 2
      interval = "1s"
    }
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
