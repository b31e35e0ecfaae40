job "web" {
  group "api" {
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
      artifact {
        source      = "https://example.com/a.tar.gz"
        destination = "/../../a"
      }
    }
  }
}
