job "web" {
  group "api" {
    task "server" {
      driver = "docker"
      config {
        ports = ["http"]
      }
    }
  }
}
