job "web" {
  group "api" {
    task "server" {
      driver = "exec"
      config {
        comand = "/bin/true"
      }
    }
  }
}
