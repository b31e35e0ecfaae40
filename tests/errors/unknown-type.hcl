job "web" {
  type = "servise"
  group "app" {
    task "server" {
      driver = "exec"
    }
  }
}
