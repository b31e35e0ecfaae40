job "web" {
  group "api" {
    constraint {
      attribute = "${attr.kernel.name}"
      operator  = "regexp"
      value     = "lin(ux"
    }
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
