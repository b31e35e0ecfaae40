job "web" {
  type = "system"
  group "api" {
    count = 3
    task "server" {
      driver = "exec"
    }
  }
}
