job "web" {
  group "api" {
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
      resources {
        memory = "256MB"
      }
    }
  }
}
