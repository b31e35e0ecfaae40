job "web" {
  id = "my web"
  group "api" {
    task "server" {
      driver = "exec"
    }
  }
}
