job "web" {
  group "api" {
    task "server" {
      driver = 'exec'
    }
  }
}
