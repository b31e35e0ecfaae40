job "web" {
  group "api" {
    count = -1
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
