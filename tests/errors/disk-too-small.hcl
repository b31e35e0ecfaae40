job "web" {
  group "api" {
    ephemeral_disk {
      size = 5
    }
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
