// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pins memory as the drivers of real RDMA hardware pin the buffers of their queues: by the umem
 * call, outside any registration of an MR. Soft RoCE never does, so the lab has this.
 *
 * Each write() to /dev/mrscope_lab is one command, and its error is the command's:
 *   pin DEVICE ADDRESS LENGTH   pins that range of the caller's memory and keeps it on the file
 *   unpin                       gives the newest pin of the file back
 * The rest is given back when the file is closed, or earlier if the device goes away.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/fs.h>
#include <linux/kernel.h>
#include <linux/list.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 2, 0)
#define ib_umem_get_va ib_umem_get
#endif

#define MAX_PINS_PER_FILE 1024
#define MAX_COMMAND_BYTES 128

/*
 * The devices come from an RDMA client, as 7.2 no longer lets modules look them up by name.
 * A client is also told before a device goes, which a pin must not outlive.
 */
struct lab_device {
	struct list_head entry;
	struct list_head pins;
	struct ib_device *ibdev;
};

struct lab_file {
	struct list_head pins;
	unsigned int count;
};

struct lab_pin {
	struct list_head of_file;
	struct list_head of_device;
	struct lab_file *file;
	struct ib_umem *umem;
};

static LIST_HEAD(lab_devices);
/* Guards the devices, the files' pins and their counts. */
static DEFINE_MUTEX(lab_lock);

static void lab_release_pin(struct lab_pin *pin)
{
	lockdep_assert_held(&lab_lock);
	ib_umem_release(pin->umem);
	list_del(&pin->of_file);
	list_del(&pin->of_device);
	pin->file->count--;
	kfree(pin);
}

static struct lab_device *lab_find_device(const char *name)
{
	struct lab_device *device;

	lockdep_assert_held(&lab_lock);
	list_for_each_entry(device, &lab_devices, entry)
	{
		if (!strcmp(device->ibdev->name, name))
			return device;
	}
	return NULL;
}

static int lab_pin_locked(struct lab_file *file, const char *name, unsigned long address,
			  size_t length)
{
	struct lab_device *device = lab_find_device(name);
	struct lab_pin *pin;
	struct ib_umem *umem;

	if (!device)
		return -ENODEV;
	if (file->count >= MAX_PINS_PER_FILE)
		return -ENOSPC;
	pin = kzalloc(sizeof(*pin), GFP_KERNEL);
	if (!pin)
		return -ENOMEM;
	umem = ib_umem_get_va(device->ibdev, address, length, IB_ACCESS_LOCAL_WRITE);
	if (IS_ERR(umem)) {
		kfree(pin);
		return PTR_ERR(umem);
	}
	pin->umem = umem;
	pin->file = file;
	list_add(&pin->of_file, &file->pins);
	list_add(&pin->of_device, &device->pins);
	file->count++;
	return 0;
}

static int lab_unpin_locked(struct lab_file *file)
{
	struct lab_pin *newest = list_first_entry_or_null(&file->pins, struct lab_pin, of_file);

	if (!newest)
		return -ENOENT;
	lab_release_pin(newest);
	return 0;
}

static int lab_run(struct lab_file *file, char *command)
{
	char *word = strsep(&command, " ");
	char *name, *address_word, *length_word;
	unsigned long address, length;
	int ret;

	if (!strcmp(word, "unpin") && !command) {
		mutex_lock(&lab_lock);
		ret = lab_unpin_locked(file);
		mutex_unlock(&lab_lock);
		return ret;
	}
	if (strcmp(word, "pin"))
		return -EINVAL;
	name = strsep(&command, " ");
	address_word = strsep(&command, " ");
	length_word = strsep(&command, " ");
	if (!length_word || command)
		return -EINVAL;
	ret = kstrtoul(address_word, 0, &address);
	if (ret)
		return ret;
	ret = kstrtoul(length_word, 0, &length);
	if (ret)
		return ret;
	mutex_lock(&lab_lock);
	ret = lab_pin_locked(file, name, address, length);
	mutex_unlock(&lab_lock);
	return ret;
}

static ssize_t lab_write(struct file *filp, const char __user *from, size_t count, loff_t *pos)
{
	char command[MAX_COMMAND_BYTES];
	int ret;

	if (count >= sizeof(command))
		return -EINVAL;
	if (copy_from_user(command, from, count))
		return -EFAULT;
	command[count] = '\0';
	ret = lab_run(filp->private_data, strim(command));
	return ret ? ret : count;
}

static int lab_open(struct inode *inode, struct file *filp)
{
	struct lab_file *file = kzalloc(sizeof(*file), GFP_KERNEL);

	if (!file)
		return -ENOMEM;
	INIT_LIST_HEAD(&file->pins);
	filp->private_data = file;
	return nonseekable_open(inode, filp);
}

static int lab_close(struct inode *inode, struct file *filp)
{
	struct lab_file *file = filp->private_data;

	mutex_lock(&lab_lock);
	while (!lab_unpin_locked(file))
		;
	mutex_unlock(&lab_lock);
	kfree(file);
	return 0;
}

static struct ib_client lab_client;

static int lab_add_device(struct ib_device *ibdev)
{
	struct lab_device *device = kzalloc(sizeof(*device), GFP_KERNEL);

	if (!device)
		return -ENOMEM;
	INIT_LIST_HEAD(&device->pins);
	device->ibdev = ibdev;
	ib_set_client_data(ibdev, &lab_client, device);
	mutex_lock(&lab_lock);
	list_add(&device->entry, &lab_devices);
	mutex_unlock(&lab_lock);
	return 0;
}

static void lab_remove_device(struct ib_device *ibdev, void *client_data)
{
	struct lab_device *device = client_data;
	struct lab_pin *pin;

	mutex_lock(&lab_lock);
	while ((pin = list_first_entry_or_null(&device->pins, struct lab_pin, of_device)))
		lab_release_pin(pin);
	list_del(&device->entry);
	mutex_unlock(&lab_lock);
	kfree(device);
}

static struct ib_client lab_client = {
    .name = "mrscope_lab",
    .add = lab_add_device,
    .remove = lab_remove_device,
    .no_kverbs_req = 1,
};

static const struct file_operations lab_fops = {
    .owner = THIS_MODULE,
    .open = lab_open,
    .write = lab_write,
    .release = lab_close,
};

static struct miscdevice lab_misc = {
    .minor = MISC_DYNAMIC_MINOR,
    .name = "mrscope_lab",
    .fops = &lab_fops,
    .mode = 0666,
};

static int __init lab_init(void)
{
	int ret = ib_register_client(&lab_client);

	if (ret)
		return ret;
	ret = misc_register(&lab_misc);
	if (ret)
		ib_unregister_client(&lab_client);
	return ret;
}

static void __exit lab_exit(void)
{
	misc_deregister(&lab_misc);
	ib_unregister_client(&lab_client);
}

module_init(lab_init);
module_exit(lab_exit);
MODULE_DESCRIPTION("Pins memory outside any memory registration, for mrscope's tests");
MODULE_LICENSE("GPL");
