job "web" {
  group "app" {
    task "server" {
      driver = "exec"
      resources {
        memory = 4
      }
    }
  }
}
