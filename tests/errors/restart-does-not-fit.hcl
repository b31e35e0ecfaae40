job "web" {
  group "api" {
    restart {
      attempts = 10
      delay    = "30s"
      interval = "1m"
    }
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
