job "web" {
  group "app" {
    task "server" {
      driver = "exec"
      resources = { cpu = 100 }
    }
  }
}
