# A constraint that this machine does not meet: what was wanted, and what is here.
# status: 125
# prints: attr.kernel.name
# prints: windows
# prints: linux
# never: Task started

job "placed" {
  type = "batch"

  group "placed" {
    constraint {
      attribute = "${attr.kernel.name}"
      value     = "windows"
    }

    task "placed" {
      driver = "exec"

      config {
        command = "/bin/echo"
        args    = ["placed"]
      }
    }
  }
}
