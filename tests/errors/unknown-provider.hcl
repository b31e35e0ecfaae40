job "web" {
  group "api" {
    service {
      provider = "nomda"
    }
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
