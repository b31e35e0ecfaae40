job "web" {
  group "api" {
    count = "two"
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
