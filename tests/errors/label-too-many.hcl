job "web" {
  group "app" {
    task "server" {
      driver = "exec"
      env "a" {
      }
    }
  }
}
