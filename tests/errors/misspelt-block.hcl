job "web" {
  group "app" {
    task "server" {
      driver = "exec"
      resource {
        cpu = 100
      }
    }
  }
}
