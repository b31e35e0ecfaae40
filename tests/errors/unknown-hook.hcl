job "web" {
  group "app" {
    task "server" {
      driver = "exec"
      lifecycle {
        hook = "pre-start"
      }
    }
  }
}
