job "web" {
  priority = 150
  group "api" {
    task "server" {
      driver = "exec"
    }
  }
}
