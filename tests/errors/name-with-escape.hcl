job "web" {
  group "api\u001b[31m" {
    task "server" {
      driver = "exec"
    }
  }
}
