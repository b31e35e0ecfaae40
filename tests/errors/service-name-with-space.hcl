job "web" {
  group "api" {
    service {
      provider = "nomad"
      name     = "my web"
    }
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
