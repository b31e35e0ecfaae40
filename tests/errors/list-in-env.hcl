job "web" {
  group "api" {
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
      env {
        PATHS = ["/a", "/b"]
      }
    }
  }
}
