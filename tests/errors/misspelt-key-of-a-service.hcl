job "web" {
  group "app" {
    service {
      nmae = "web"
    }
    task "server" {
      driver = "exec"
    }
  }
}
