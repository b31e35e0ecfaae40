job "web" {
  group "app" {
    task "server" {
      driver = "exec"
      kill_timeout = "5 minutes"
    }
  }
}
