job "web" {
  group "api" {
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
      resources {
        cpu = 100
      }
      resources {
        memory = 100
      }
    }
  }
}
