job "web" {
  group "app" {
    task "server" {
      driver = "exec"
      user {
      }
    }
  }
}
