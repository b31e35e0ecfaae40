job "web" {
  group "api" {
    constraint {
      attribute = "${attr.kernel.name}"
    }
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
