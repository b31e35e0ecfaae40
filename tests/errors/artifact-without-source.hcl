job "web" {
  group "api" {
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
      artifact {
        destination = "local"
      }
    }
  }
}
