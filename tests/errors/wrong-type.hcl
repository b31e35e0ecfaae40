job "web" {
  group "app" {
    task "server" {
      driver = "exec"
      leader = "maybe"
    }
  }
}
