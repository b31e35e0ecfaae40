job "web" {
  group "api" {
    update {
      health_check = "check"
    }
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
