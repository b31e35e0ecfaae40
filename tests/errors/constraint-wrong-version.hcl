job "web" {
  group "api" {
    constraint {
      attribute = "${attr.kernel.version}"
      operator  = "version"
      value     = "at least 5"
    }
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
