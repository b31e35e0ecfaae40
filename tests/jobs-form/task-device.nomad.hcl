job "task-device" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      resources {
        device "nvidia/gpu/Tesla" {
          count = 2
          constraint {
            attribute = "${device.attr.memory}"
            operator = ">="
            value = "2 GiB"
          }
          affinity {
            attribute = "${device.attr.memory}"
            operator = ">="
            value = "4 GiB"
            weight = 75
          }
        }
        device "usb" {
        }
      }
    }
  }
}
